"""Errors that a user can cause, as one line that says what to change."""


class InputError(Exception):
    """Bad input: a name, a file, an option, a configuration.

    The message is one line that names the thing and the remedy. Commands print it and exit
    with code 2 (`cli.parse.command`); in a notebook it is an ordinary exception.
    """


class Undefined(InputError, AttributeError):
    """A quantity that this architecture does not define; the message gives the reason, and `hasattr` is False."""


def unknown(what: str, name: str, known: list[str]) -> InputError:
    """The `InputError` for an unknown name, with the nearest known names."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known[:40])}"
    return InputError(f"unknown {what} {name!r}: {hint}")
