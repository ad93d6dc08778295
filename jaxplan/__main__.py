"""`python -m jaxplan`."""

import sys

if __name__ == "__main__":
    try:
        from jaxplan.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)  # interrupted before there was anything to say
    main()
