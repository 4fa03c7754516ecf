"""The Inductor plugin. Only this folder imports ``torch._inductor``.

lowering    wrapped lowerings say which ATen op is being lowered
request     its arguments and input nodes as a GemmProblem with views
choice      kernels for it, beside or instead of Inductor's choices
scheduling  fusion, trials and code generation of templates that are ours
epilogue    consumers as an EpilogueGraph; viewfusion proposes more of them
plan        the last build: kernels, arguments, at most four variants by M
served      what the generated wrapper imports
timing      benchmarks free of host noise
install     turning all of it on and off; cachekey, compat, reasons, report serve it
"""
