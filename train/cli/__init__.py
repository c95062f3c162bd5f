"""This package holds the subcommands of `train`; its modules import no torch until one needs it."""
