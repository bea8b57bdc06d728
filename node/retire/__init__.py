"""Retire: versioned execution for LLM serving."""
