"""Reads the Python files that it is given, and exits 1 if one is not valid Python."""

import ast
import sys


def main() -> int:
    wrong = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            ast.parse(text, filename=path)
        except SyntaxError as error:
            print(f"{path}:{error.lineno}: {error.msg}", file=sys.stderr)
            wrong += 1
    print(f"{len(sys.argv) - 1} files of Python, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
