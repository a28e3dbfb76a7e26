"""``ptxemu`` and ``python -m ptxemu``: see `ptxemu.command`. Whatever goes wrong is one line on stderr.

Exit code: 0 it ran, and no hazard was found; 1 a hazard, or something that a kernel may not do; 2 it could not run;
130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import io
import os
import signal
import sys


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    code = 0
    try:
        # Here, so that Ctrl-C while NumPy is loaded is as quiet as later.
        from ptxemu.errors import PtxemuError

        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal cannot show
        try:
            words = sys.argv[1:] if argv is None else list(argv)
            if words[:1] == ["run"]:
                from ptxemu.host import program

                code = program.run(words[1:])
            elif words[:1] == ["descriptor"]:
                from ptxemu.observe.descriptors import run as explain

                print(explain(words[1:]))
            else:
                from ptxemu.command import run

                text, code = run(words)
                print(text)
        except PtxemuError as error:
            code = error.exit_code
            print(f"error: {error}", file=sys.stderr)
        except ImportError as error:  # ml_dtypes without NumPy raises no ModuleNotFoundError
            print(f"error: {' '.join(str(error).split())}; run: pip install numpy ml-dtypes", file=sys.stderr)
            code = 2
        except SystemExit as left:  # --help, --version
            code = int(left.code or 0)
        if sys.stdout is not None:  # it is None where the shell closed it, `>&-`
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `ptxemu ... | head`, `2>&1 | true`
        _drop_stdout()
    except OSError as error:  # a full disk behind stdout
        _drop_stdout()
        with contextlib.suppress(OSError):  # the same disk behind stderr
            print(f"error: {error.strerror or error}", file=sys.stderr)
        return 2
    return code


def _drop_stdout() -> None:
    """Sends what is left in the buffer nowhere: the interpreter flushes once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
