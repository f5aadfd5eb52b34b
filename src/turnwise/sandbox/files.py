"""Files of a shell's session, as the host describes them: entries, and archives that a session loads."""

import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file, a folder (`data` and `target` None) or a symbolic link, by its absolute path in a session."""

    path: str
    data: bytes | None = None
    target: str | None = None
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The state in which a shell starts."""

    archive: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/root"


def pack(entries: Sequence[FileEntry]) -> bytes:
    """Return an archive for `Shell.load`."""
    return zlib.compress(pack_tar(entries), 1)


def pack_tar(entries: Sequence[FileEntry]) -> bytes:
    """Return a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path.strip("/"))
            info.mode = entry.mode
            if entry.target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
            elif entry.data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.data)
            tar.addfile(info, None if entry.data is None else io.BytesIO(entry.data))
    return buffer.getvalue()
