"""Objects by name: ``"package.module:name"`` and ``"folder/file.py:name"``, with dots in the name where it has some."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, NamedTuple

from rollout_trace._wrong_use import did_you_mean
from rollout_trace.data.user_values import brief
from rollout_trace.guard import describe, printable


class Spec(NamedTuple):
    """A name of an object, taken apart."""

    module: str
    """Dotted name of a module, or the absolute path of its file."""
    name: str
    """Of the object in the module, with dots where it is an attribute of another one."""

    @property
    def is_file(self) -> bool:
        return self.module.endswith(".py")


def parse_spec(text: str) -> Spec:
    """Takes ``"module:name"`` or ``"file.py:name"`` apart. Raises ValueError for anything else."""
    module, _, name = text.rpartition(":")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(
            f'{brief(text)} does not name an object. Give "package.module:name" or "folder/file.py:name", '
            "where name is that of a function or class in it."
        )
    if module.endswith(".py"):
        return Spec(os.path.abspath(os.path.expanduser(module)), name)
    if os.sep in module or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(
            f"{brief(module)} in {brief(text)} is neither a module (give its dotted name) nor a file that ends in .py."
        )
    return Spec(module, name)


def absolute_spec(text: str) -> str:
    """The text with the absolute path of its file, for processes with another current folder."""
    return ":".join(parse_spec(text))


def load_object(text: str) -> Any:
    """The object that ``"package.module:name"`` or ``"folder/file.py:name"`` names; its module is imported.

    As with ``python folder/file.py`` its folder becomes importable; of a file in a package, the folder of the package.
    Raises ValueError, FileNotFoundError or ImportError, with what to write.
    """
    spec = parse_spec(text)
    module = _import_file(spec.module) if spec.is_file else _import_module(spec.module)
    found: Any = module
    parts = spec.name.split(".")
    for at, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            where = ".".join([spec.module if not spec.is_file else os.path.basename(spec.module), *parts[:at]])
            names = [name for name in dir(found) if not name.startswith("__")]
            raise ImportError(f"{where} has no {part!r}. {did_you_mean(part, names, '')}".rstrip()) from None
    return found


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(name, error) from error
        top = name.partition(".")[0]
        if error.name != top:
            raise ImportError(
                f"there is no module {error.name!r}: the package {error.name.rpartition('.')[0]!r} has no such module."
            ) from None
        raise ImportError(f"there is no module {top!r}. {_advice(top)}") from None
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _advice(module: str) -> str:
    here = os.getcwd()
    is_here = any(os.path.exists(os.path.join(here, module + end)) for end in (".py", ""))
    if is_here and here not in map(os.path.abspath, sys.path):
        return f"It is in the folder {here}, which is not on sys.path: set PYTHONPATH, or give its file."
    # In the first two folders a user's own modules are.
    names = [name.removesuffix(".py") for folder in (here, *sys.path[:1]) for name in _python_files(folder)]
    return did_you_mean(module, names, "Install it, set PYTHONPATH, or give its file.")


def _python_files(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder or ".") if name.endswith(".py")]
    except OSError:
        return []


def _failed(module: str, error: BaseException) -> ImportError:
    """An ImportError that says where and how the import of a module failed."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_import = file == __file__ or file.startswith("<frozen") or os.sep + "importlib" + os.sep in file
        if not is_import:
            place = f" ({os.path.basename(file)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return ImportError(f"{printable(module)} cannot be imported{place}: {describe(error)}")


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}{_near_file(path)}")
    folder, name = os.path.dirname(path), os.path.basename(path).removesuffix(".py")
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = f"{package}.{name}"
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = _known(path)
    if known is not None:
        return known
    if "." in name:
        module = _import_module(name.removesuffix(".__init__"))
        if not _is_of(module, path):
            raise ImportError(
                f"{path} cannot be imported: another module has the name {name} already, from {module.__file__}. "
                "Rename one."
            )
        return module
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        # The file of another module has this name, or no module can have it.
        name = f"_file_{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    return _execute(path, name)


def _near_file(path: str) -> str:
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        return f": there is no folder {folder}."
    return f". {did_you_mean(name, _python_files(folder), '')}".rstrip()


def _known(path: str) -> ModuleType | None:
    """The module that a file has been imported as; ``__main__`` where it is the program itself."""
    return next((module for module in list(sys.modules.values()) if _is_of(module, path)), None)


def _is_of(module: Any, path: str) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or os.path.basename(file) != os.path.basename(path):
        return False
    return os.path.realpath(file) == os.path.realpath(path)


def _execute(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported: Python has no loader for it.")
    module = importlib.util.module_from_spec(spec)
    # Before it is executed: dataclasses and pickle look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (Exception, SystemExit)):
            raise _failed(path, error) from error
        raise
    return module
