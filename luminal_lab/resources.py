"""Where the compiler's data files live: the rules and the hand-written kernels.

In a checkout (and in an editable install) they are the folders ``rules/`` and ``kernels/`` at
the top of the repository; in an installed wheel they are ``luminal_lab/_rules`` and
``luminal_lab/_kernels``. Nothing else in the package may assume either place.
"""

from __future__ import annotations

from pathlib import Path

from luminal_lab.errors import LuminalError

_PACKAGE = Path(__file__).resolve().parent


def _data_dir(name: str) -> Path:
    # The packaged copy wins: a wheel is complete by itself, whatever lies beside site-packages.
    places = (_PACKAGE / f"_{name}", _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    tried = " and ".join(str(place) for place in places)
    raise LuminalError(
        f"the installation is incomplete: there is no folder of {name}",
        where=tried,
        fix="reinstall luminal-lab, or run from a full checkout",
    )


def rules_dir() -> Path:
    """Return the folder of the built-in ``.egg`` rule files.

    Returns:
        An existing directory. Themes lie directly in it, target rules under ``targets/``.

    Raises:
        LuminalError: the installation lacks the folder.

    Example:
        >>> from luminal_lab.resources import rules_dir
        >>> rules_dir().joinpath("fusion.egg").read_text()  # doctest: +SKIP
    """
    return _data_dir("rules")


def kernels_dir() -> Path:
    """Return the folder of the hand-written kernels, with one folder per target in it.

    Returns:
        An existing directory.

    Raises:
        LuminalError: the installation lacks the folder.

    Example:
        >>> from luminal_lab.resources import kernels_dir
        >>> kernels_dir().name.lstrip("_")
        'kernels'
    """
    return _data_dir("kernels")
