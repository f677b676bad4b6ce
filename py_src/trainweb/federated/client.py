"""A client of federated learning: local training from the common parameters, and the update that it gives away."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb import messages
from trainweb.arguments import check_settings
from trainweb.data.dataset import Dataset
from trainweb.data.random import MAX_SEED
from trainweb.federated.updates import ClientUpdate, add_noise, as_vector, clip_update
from trainweb.fit.trainer import fit
from trainweb.settings import Field, Number, Whole
from trainweb.training.arrays import parameter_bytes, to_numpy

if TYPE_CHECKING:
    from trainweb.training.history import History
    from trainweb.training.session_methods import SessionMethods

FEDERATED = {
    "clip_norm": Field(Number(above=0), None, is_optional=True),
    "noise_multiplier": Field(Number(least=0), 0.0, is_optional=False),
    "noise_clients": Field(Whole(least=1), 1, is_optional=False),
    "seed": Field(Whole(least=0, most=MAX_SEED), None, is_optional=True),
}

DOCS = {
    "clip_norm": "The largest L2 norm of an update; a longer one is scaled down to it. By default no update is scaled.",
    "noise_multiplier": "Standard deviation of the Gaussian noise of the sum of all updates, as a multiple of the clip "
    "norm.",
    "noise_clients": "Number of clients that share the noise; each adds its part. With 1, this client adds all of it.",
    "seed": "Seed of the noise, for tests: it lets others remove the noise. By default the system's source for "
    "cryptography draws it.",
}


class FederatedClient:
    """Rounds of a session, as a client; `TrainingSession.federated` makes it.

    Parameters
    ----------
    session : TrainingSession
        With an optimizer model; plain SGD is the usual choice, for moments stay with the client from round to round.
    **options
        clip_norm : float, optional
            The largest L2 norm of an update; a longer one is scaled down to it.
        noise_multiplier : float
            Standard deviation of the Gaussian noise of the sum of all updates, as a multiple of `clip_norm`; 0.
        noise_clients : int
            Among how many clients the noise is divided; 1: this one adds all.
        seed : int, optional
            Of the noise, for tests; by default it is drawn from the system's source for cryptography.

    Raises
    ------
    ModelError
        An option is wrong, or there is noise without a clip norm.
    """

    def __init__(self, session: SessionMethods, **options: Any) -> None:
        check_settings("federated", options, FEDERATED)
        for name, value in options.items():
            if value is not None or not FEDERATED[name].is_optional:
                FEDERATED[name].kind.check(name, value)
        given = {name: options.get(name, field.default) for name, field in FEDERATED.items()}
        self.session = session
        self._clip_norm: float | None = given["clip_norm"]
        self._seed: int | None = given["seed"]
        self._rounds = 0
        if given["noise_multiplier"] and self._clip_norm is None:
            raise messages.NOISE_WITHOUT_CLIP()
        # The noise of the sum has the variance of all shares together.
        share = given["noise_multiplier"] / math.sqrt(given["noise_clients"])
        self._deviation = share * (self._clip_norm or 0.0)

    def round(self, parameters: Any, data: Any, **options: Any) -> ClientUpdate:
        """Train from the common parameters on this client's data.

        Parameters
        ----------
        parameters : array_like
            All trained parameters, float32, as `get_contiguous_parameters` gives them.
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
        size = core.get_parameters_size(True)
        start = as_vector("parameters", parameters, size)
        dataset = Dataset.of(data)
        if dataset.columns is None:
            raise messages.UNCOUNTED_ROWS()
        core.load_parameters_buffer(parameter_bytes(start), True)
        history = fit(core, dataset, options)
        delta = to_numpy(core.get_contiguous_parameters(True)) - start
        return self._update(delta, len(dataset), history)

    def _update(self, delta: np.ndarray, examples: int, history: History) -> ClientUpdate:
        clipped, norm = clip_update(delta, self._clip_norm if self._clip_norm is not None else np.finfo("f8").max)
        if not self._deviation:
            return ClientUpdate(clipped, examples, norm, False, history)
        noised = add_noise(clipped, self._deviation, self._seed, self._rounds)
        self._rounds += 1
        return ClientUpdate(noised, examples, norm, True, history)
