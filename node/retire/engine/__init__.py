"""The vLLM plugin: the only code that knows vLLM. One seam, one file, under ``seams/``."""
