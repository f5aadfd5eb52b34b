"""The process's limit of open files."""

import resource


def raise_open_file_limit(wanted: int) -> None:
    """Raise the soft limit, which is often 1,024, to `wanted` or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
