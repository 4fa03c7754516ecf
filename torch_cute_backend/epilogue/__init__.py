"""What happens to the fp32 accumulator before it is stored."""
