"""Federated learning: what a client does in a round, and what a server makes of the updates.

    client = session.federated(clip_norm=1.0)
    update = client.round(common, data, batch_size=32)          # on each client
    common = trainweb.federated.average_updates(common, updates)  # on the server

In a page `TrainingSession.federated` and the functions of these names are the same. `docs/privacy.md` says what
clipping, noise and masks protect from, and what not.
"""

from trainweb.federated.client import FederatedClient
from trainweb.federated.privacy import noise_multiplier_for, privacy_spent
from trainweb.federated.secure import SecureMember, add_masked
from trainweb.federated.updates import ClientUpdate, add_noise, average_updates, clip_update

__all__ = [
    "ClientUpdate",
    "FederatedClient",
    "SecureMember",
    "add_masked",
    "add_noise",
    "average_updates",
    "clip_update",
    "noise_multiplier_for",
    "privacy_spent",
]
__dir__ = __all__.copy
