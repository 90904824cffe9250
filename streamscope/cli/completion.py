"""`streamscope completion bash|zsh|fish`: a script that completes commands, their options and the values of these.

Commands and options are read off what each command prints with --help, so the script knows the version that made it.
"""

import io
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from shlex import quote
from unittest.mock import patch

from streamscope.cli.commands import commands, entry, first_line
from streamscope.cli.errors import unknown

Options = Mapping[str, tuple[str, ...]]
"""--option -> the values that it takes, () where these are no list of single words."""
OPTION = re.compile(r"^  (--[\w-]+(?: / --[\w-]+)*)(?: \{([^}]*)\})?", re.MULTILINE)


def script(shell: str, models: Sequence[str] = ()) -> str:
    """The script for a shell; `models` are completed where a run is named. Raises `InputError` for another shell."""
    if shell not in WRITERS:
        raise unknown("shell", shell, list(WRITERS))
    typed = {name: (first_line(module), options(module)) for name, module in commands().items()}
    return WRITERS[shell](typed, models)


def options(module: str) -> Options:
    """The options of a command, from its help."""
    main, output = entry(module), io.StringIO()
    with patch.dict(os.environ, COLUMNS="400"), redirect_stdout(output), suppress(SystemExit):
        main(["--help"])
    known: dict[str, tuple[str, ...]] = {}
    for names, values in OPTION.findall(output.getvalue()):
        for name in re.findall(r"--[\w-]+", names):
            known[name] = tuple(values.split(",")) if values and " " not in values else ()
    return known


Typed = Mapping[str, tuple[str, Options]]


def _cases(typed: Typed, values: str, options: str) -> tuple[str, str]:
    """Lines of a shell's `case`: one per option with listed values, and one per command with its options.

    `values` and `options` are their formats; {words} are the words, quoted one by one, {line} all of them as one.
    """

    def line(form: str, at: str, words: Sequence[str]) -> str:
        return form.format(at=quote(at), words=" ".join(map(quote, words)), line=quote(" ".join(words)))

    listed = [line(values, f"{name} {option}", some) for name, (_, known) in typed.items()
              for option, some in known.items() if some]  # fmt: skip
    return "\n".join(listed), "\n".join(line(options, name, list(known)) for name, (_, known) in typed.items())


def bash(typed: Typed, models: Sequence[str]) -> str:
    """For bash: words that begin with - are options, others bundled models, and files where none fits."""
    cases, lines = _cases(typed, *["    {at}) words={line} ;;"] * 2)
    return f"""\
_streamscope() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} words=""
  if [ $COMP_CWORD -eq 1 ]; then
    COMPREPLY=($(compgen -W {quote(" ".join(typed))} -- "$cur")); return
  fi
  case "$command ${{COMP_WORDS[COMP_CWORD-1]}}" in
{cases}
  esac
  if [ -z "$words" ]; then case "$cur" in
  -*) case "$command" in
{lines}
  esac ;;
  *) words={quote(" ".join(models))} ;;
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _streamscope streamscope
"""


def zsh(typed: Typed, models: Sequence[str]) -> str:
    """For zsh, a file `_streamscope` in a folder of $fpath."""
    cases, lines = _cases(typed, "  {at}) compadd -- {words}; return ;;", "  {at}) compadd -- {words} ;;")
    named = " ".join(quote(f"{name}:{about}") for name, (about, _) in typed.items())
    return f"""\
#compdef streamscope
if (( CURRENT == 2 )); then
  local -a named; named=({named})
  _describe command named; return
fi
case "${{words[2]}} ${{words[CURRENT-1]}}" in
{cases}
esac
if [[ ${{words[CURRENT]}} == -* ]]; then
  case "${{words[2]}}" in
{lines}
  esac
else
  compadd -- {" ".join(models)}
  _files
fi
"""


def fish(typed: Typed, models: Sequence[str]) -> str:
    """For fish, a file `streamscope.fish` of its completions."""

    def line(*words: str) -> str:
        return " ".join(["complete -c streamscope", *words])

    def text(value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [
        line("-n __fish_use_subcommand", "-f", f"-a {name}", f"-d {text(about)}") for name, (about, _) in typed.items()
    ]
    lines.append(line("-n 'not __fish_use_subcommand'", f"-a {text(' '.join(models))}"))
    for name, (_, known) in typed.items():
        for option, values in known.items():
            taken = [f"-x -a {text(' '.join(values))}"] if values else []
            lines.append(line(f"-n '__fish_seen_subcommand_from {name}'", f"-l {option.removeprefix('--')}", *taken))
    return "\n".join([*lines, ""])


WRITERS = {"bash": bash, "zsh": zsh, "fish": fish}
