"""Where vLLM is opened: each file names its symbols, upstream status and the versions tested."""
