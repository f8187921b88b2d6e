"""What stands in files that bertkit wrote itself, held against the form in which it writes them."""

from typing import Any

from bertkit.errors import UserError


def validate(found: Any, form: Any, where: object) -> Any:
    """`found` as `form` has it, which leaves out the keys that it does not name.

    Args:
        found: what a JSON or YAML file holds, or a line of one.
        form: any type that msgspec knows.
        where: the file, and the line, for the error.

    Raises:
        UserError: it has another form (the key).
    """
    import msgspec

    try:
        return _converted(found, form)
    except msgspec.ValidationError as error:
        what = str(error).removesuffix(" - at `$`")
        raise UserError(f"{where}: is not what a run writes ({what}); the run must be made again") from error


def _converted(found: Any, form: Any) -> Any:
    import msgspec

    try:
        return msgspec.convert(found, form)
    except UnicodeEncodeError:  # half of a surrogate pair elsewhere than in the value of a text
        return msgspec.convert(_whole(found), form)


def _whole(found: Any) -> Any:
    """The same with a question mark for each half of a surrogate pair."""
    if isinstance(found, str):
        return found.encode("utf-8", "replace").decode()
    if isinstance(found, dict):
        return {_whole(key): _whole(value) for key, value in found.items()}
    return [_whole(value) for value in found] if isinstance(found, list) else found
