"""A client of federated learning: local training from the common parameters, and the update that it gives away."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from trainweb import messages
from trainweb.data.dataset import Dataset
from trainweb.federated.updates import ClientUpdate, add_noise, as_vector, clip_update
from trainweb.fit.trainer import fit
from trainweb.settings import Choice, Count, NotNegative, Positive, Seed, checked
from trainweb.training.arrays import parameter_bytes, to_numpy
from trainweb.training.session_methods import SessionMethods

if TYPE_CHECKING:
    from trainweb.training.history import History


class FederatedClient:
    """Rounds of a session, as a client; `TrainingSession.federated` makes it.

    Parameters
    ----------
    session : TrainingSession
        With an optimizer model; plain SGD is the usual choice, for moments stay with the client from round to round.
    clip_norm : float, optional
        The largest L2 norm of an update; a longer one is scaled down to it. By default no update is scaled.
    noise_multiplier : float
        Standard deviation of the Gaussian noise of the sum of all updates, as a multiple of the clip norm.
    noise_clients : int
        Number of clients that share the noise; each adds its part. With 1, this client adds all of it.
    seed : int, optional
        Seed of the noise, for tests: it lets others remove the noise. By default the system's source for cryptography
        draws it.
    statistics : {"local", "average"}
        "average": rounds are of all parameters, with the running statistics of batch norms. They are averaged as the
        trained parameters are. "local": each client keeps its own.

    Raises
    ------
    ModelError
        An option is wrong, or there is noise without a clip norm or with averaged statistics.
    """

    @checked
    def __init__(
        self,
        session: SessionMethods,
        *,
        clip_norm: Positive | None = None,
        noise_multiplier: NotNegative = 0.0,
        noise_clients: Count = 1,
        seed: Seed | None = None,
        statistics: Annotated[str, Choice(("local", "average"))] = "local",
    ) -> None:
        if noise_multiplier and clip_norm is None:
            raise messages.NOISE_WITHOUT_CLIP()
        if noise_multiplier and statistics == "average":
            raise messages.NOISE_AND_STATISTICS()
        self.session, self._clip_norm, self._seed, self._rounds = session, clip_norm, seed, 0
        self._trainable_only = statistics == "local"
        # The noise of the sum has the variance of all shares together.
        self._deviation = noise_multiplier / math.sqrt(noise_clients) * (clip_norm or 0.0)

    def round(self, parameters: Any, data: Any, **options: Any) -> ClientUpdate:
        """Train from the common parameters on this client's data.

        Parameters
        ----------
        parameters : array_like
            All trained parameters, float32, as `get_contiguous_parameters` gives them; all parameters, trained or not,
            where statistics are averaged.
        data
            As `TrainingSession.fit` takes it; its rows must be countable.
        **options
            Of `TrainingSession.fit`: epochs, batch_size, ``proximal`` (FedProx), seed (of the order of rows: give
            another one each round) and the others.

        Returns
        -------
        ClientUpdate
            Only its `delta` may leave the client, and `examples` if the server may know them.

        Raises
        ------
        BufferSizeError
            The parameters are of another length than the session's.
        ModelError, FeedError, SessionError, TrainwebError
            As `TrainingSession.fit`; or an update that is not finite.
        """
        core = self.session._core
        size = core.get_parameters_size(self._trainable_only)
        start = as_vector("parameters", parameters, size)
        dataset = Dataset.of(data)
        if dataset._known is None:
            raise messages.UNCOUNTED_ROWS()
        core.load_parameters_buffer(parameter_bytes(start), self._trainable_only)
        history = fit(core, dataset, options)
        delta = to_numpy(core.get_contiguous_parameters(self._trainable_only)) - start
        return self._update(delta, history)

    def _update(self, delta: np.ndarray, history: History) -> ClientUpdate:
        clipped, norm = clip_update(delta, self._clip_norm if self._clip_norm is not None else np.finfo("f8").max)
        if not self._deviation:
            return ClientUpdate(clipped, history._rows, norm, False, history)
        noised = add_noise(clipped, self._deviation, self._seed, self._rounds)
        self._rounds += 1
        return ClientUpdate(noised, history._rows, norm, True, history)
