"""The tier's parts by themselves: real memory, no engine."""
