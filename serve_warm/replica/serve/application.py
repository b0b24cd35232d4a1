# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The name of the application that artifacts are kept for, which a build and a start derive alike.

Serve's own name of an application cannot be used, because a build has another one than a start. And
a replica does not know an import path: `serve.run(app)` has none. Both sides have the deployment's
class. So the name is the module that defines the class, which is usually the module of the import
path. A script's module is `__main__`, and would be another one in a build. So the name under which
its folder imports it, whatever the working directory, is noted on the script's classes, and Serve
sends it to the replicas together with them.

Serve sends most classes by value (cloudpickle): with their modules, names and attributes, but
without their qualified names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from serve_warm._package import PACKAGE

SCRIPT = "_serve_warm_script"
"""Name of the class attribute with the name under which a script's module can be imported."""

LOCAL = "_serve_warm_local"
"""Name of an attribute of classes that functions define, as decorators do."""

_SCRIPTS_MODULE = "__main__"


def name_application(cls: type, configured: str | None) -> str:
    """Return the configured name, or the name of the module that defines a deployment's class."""
    if configured is not None:
        return configured
    module = find_users_class(cls).__module__
    return getattr(cls, SCRIPT, module) if module == _SCRIPTS_MODULE else module


def find_users_class(cls: type) -> type:
    """Return the class in the user's code that a deployment's class is or wraps.

    `@serve.ingress`, a bench and the user's own decorators may derive a class from it.
    """
    users = [
        kind
        for kind in cls.__mro__[:-1]
        if str(kind.__module__).partition(".")[0] not in ("ray", PACKAGE)
    ]
    for number, kind in enumerate(users):
        # A decorator makes a local class, and leaves the name as it is.
        wrapped = LOCAL in vars(kind) and [each.__name__ for each in users[number + 1 :]]
        if not wrapped or kind.__name__ not in wrapped:
            return kind
    return cls


def digest_code(cls: type) -> str:
    """Return the digest of the code of the user's class, by which artifacts are told apart."""
    from serve_warm.precompile import digest_in_any_order

    return digest_in_any_order(find_users_class(cls))


def note_definition(cls: type) -> None:
    """Note on a new class whether a function defines it, and how its script can be imported."""
    if "<locals>" in cls.__qualname__:
        setattr(cls, LOCAL, True)
    # In a replica, a class that Serve derives from the script's class comes without the attribute.
    if cls.__module__ == _SCRIPTS_MODULE and not hasattr(cls, SCRIPT):
        setattr(cls, SCRIPT, _name_script())


def _name_script() -> str:
    main = sys.modules.get(_SCRIPTS_MODULE)
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name)  # python -m package.app
    file = getattr(main, "__file__", None)
    if not file:
        return _SCRIPTS_MODULE  # a notebook, which no build can import
    # Links stay: in a ConfigMap, they lead to a folder whose name changes with each update.
    path = Path(os.path.abspath(file))  # noqa: PTH100
    names = [path.stem]
    for folder in path.parents:
        if not (folder.name.isidentifier() and (folder / "__init__.py").is_file()):
            break
        names.insert(0, folder.name)
    return ".".join(names)
