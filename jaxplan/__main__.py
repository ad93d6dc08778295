"""`python -m jaxplan`."""

from jaxplan.cli.main import main

if __name__ == "__main__":
    main()
