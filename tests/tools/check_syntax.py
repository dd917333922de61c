"""Reads the Python files that it is given. Exits 1 if one is not valid Python, or if an attribute
of an object hides a method of its class, so that a call of the method calls the attribute."""

import ast
import sys


def main() -> int:
    wrong = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        problems = problems_of(text)
        for line, why in problems:
            print(f"{path}:{line}: {why}", file=sys.stderr)
        wrong += bool(problems)
    print(f"{len(sys.argv) - 1} files of Python, {wrong} wrong")
    return 1 if wrong else 0


def problems_of(text: str) -> list[tuple[int | None, str]]:
    """The lines that are wrong, and why."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        return [(error.lineno, error.msg)]
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    return [problem for one in classes for problem in hidden_methods(one)]


def hidden_methods(one: ast.ClassDef) -> list[tuple[int, str]]:
    """The assignments to `self` that hide a method which is no property."""
    methods = {node.name for node in one.body
               if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
               and not node.decorator_list}
    return [(node.lineno, f"the attribute {node.attr} hides a method of {one.name}: rename one")
            for node in ast.walk(one)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name) and node.value.id == "self"
            and node.attr in methods]


if __name__ == "__main__":
    sys.exit(main())
