"""Compile, cache and launch kernels. With ``sim/launch`` the only user of cutlass."""
