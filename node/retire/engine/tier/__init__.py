"""The DRAM tier: certified prefixes at rest in host memory, so that HBM is free meanwhile.

``host_tier`` decides (scheduler side), ``copier`` moves pages (worker side), ``orders`` is what
they say to each other. Only ``seams/host_copies.py`` knows vLLM; nothing here may import it.
"""
