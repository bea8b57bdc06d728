"""Names, logs and the history recorder. Must never import the sidecar, the engine or vLLM."""
