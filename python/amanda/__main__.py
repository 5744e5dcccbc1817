"""`python -m amanda`: the command line."""

from amanda.cli.main import main

if __name__ == "__main__":
    main()
