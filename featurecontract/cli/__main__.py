"""``python -m featurecontract.cli``: the same as the console script."""

from featurecontract.cli import main

if __name__ == "__main__":
    main()
