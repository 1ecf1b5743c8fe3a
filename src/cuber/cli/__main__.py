"""``python -m cuber.cli``: the command line."""

from cuber.cli.start import main

if __name__ == "__main__":
    main()
