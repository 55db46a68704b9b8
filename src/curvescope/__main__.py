"""``python -m curvescope``: the command line where no script is installed."""

from curvescope.cli import main

if __name__ == "__main__":
    main()
