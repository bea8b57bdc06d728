"""Where vLLM is opened: each file names its symbols, their status upstream and the versions tested."""
