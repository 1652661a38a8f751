#!/usr/bin/env python
"""Django's command line for Punctual."""

import gc
import os
import sys


def main() -> None:
    # Commands end soon. Migrations make thousands of classes that refer to each other, and spent a quarter of
    # their time on looking for garbage among them.
    gc.set_threshold(100_000, 50, 100)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
