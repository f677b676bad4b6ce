"""The places of wrong labels and rows in the data; in a page `web/src/worker/places.ts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.errors import FeedError, NumericsError

if TYPE_CHECKING:
    from trainweb.fit.steps import Position


def located(
    error: FeedError | NumericsError, feeds: Mapping[str, Any], rows: Sequence[int], at: Position, data: str = "data"
) -> Exception:
    """The error of a batch, with epoch, batch and, of a value that is out of range, input and row.

    Parameters
    ----------
    feeds
        The batch.
    rows
        The number of each of its rows.
    at
        How far the fit is: the batch is the next one.
    data
        What the rows are of.
    """
    error.epoch, error.batch = at.epoch + 1, at.step + 1
    place = None
    if isinstance(error, FeedError) and error.value is not None:
        place = find_value(feeds, error.value, error.position, len(rows))
    if place is None:
        return error
    name, k = place
    row = int(rows[k])
    said = messages.IN_ROW(reason=error, name=name, row=row, data=data, batch=error.batch, epoch=error.epoch)
    known = {key: value for key, value in vars(error).items() if key in FeedError.__annotations__}
    vars(said).update({**known, "input": name, "row": row})
    return said


def find_value(feeds: Mapping[str, Any], value: int, position: int | None, rows: int) -> tuple[str, int] | None:
    """The input and the row of a batch that have an integer: at this position of its values, or at one place only."""
    arrays = {name: np.asarray(feed) for name, feed in feeds.items()}
    flat = {name: a.reshape(-1) for name, a in arrays.items() if a.dtype.kind in "iu" and a.shape[:1] == (rows,)}
    at = {
        name: [position]
        for name, a in flat.items()
        if position is not None and position < a.size and a[position] == value
    }
    places = at or {name: found for name, a in flat.items() if (found := np.flatnonzero(a == value).tolist())}
    if len(places) != 1:
        return None
    ((name, found),) = places.items()
    found_rows = {k * rows // flat[name].size for k in found}
    return (name, found_rows.pop()) if len(found_rows) == 1 else None
