"""`python -m ringline`: the same as the command `ringline`."""

from ringline.cli.main import main

if __name__ == "__main__":
    main()
