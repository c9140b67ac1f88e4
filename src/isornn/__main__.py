"""``python -m isornn``."""

from isornn.cli import main

if __name__ == "__main__":
    main()
