"""A node of a Flower SuperLink, as a SuperNode of flwr is one: it registers, lives, pulls and pushes messages.

`flwr.supernode.fleet_http_connection` is flwr's own of this; it ends the process when one connection fails, which a
bridge with other pages must not.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np

from trainweb.flower.frames import KINDS, Arrays, Task

RETRY_SECONDS = 30.0
"""For how long a call is tried again before the page's connection ends."""
MAX_OBJECT = 2**31
"""Bytes of one array of a message."""
SAFE = 2**53
"""Integers beyond it are others in JavaScript."""


class Node:
    """A node of a SuperLink, made by `connect`; `retry` repeats the calls of flwr's client."""

    def __init__(self, client: Any, retry: Any, node: Any) -> None:
        self._client, self._retry, self._node = client, retry, node
        self.node = str(node.node_id)
        self._messages: dict[str, Any] = {}

    def _call(self, call: Callable[[Any], Any], request: Any) -> Any:
        return self._retry.invoke(call, request)

    def receive(self) -> Task | None:
        """The next task; None: there is none now, or its run is over."""
        from flwr.app import Message
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.supercore.inflatable import inflatable_protobuf_utils as objects
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
        from flwr.supercore.run import RunNotRunningException

        client = self._client
        try:
            answer = self._call(client.PullMessages, PullMessagesRequest(node=self._node))
            if not answer.messages_list:
                return None
            run = answer.messages_list[0].metadata.run_id
            tree = answer.message_object_trees[0]
            message = pull_and_inflate_object_from_tree(
                tree,
                objects.make_pull_object_fn_protobuf(
                    lambda request: self._call(client.PullObject, request), self._node, run
                ),
                objects.make_confirm_message_received_fn_protobuf(
                    lambda request: self._call(client.ConfirmMessageReceived, request), self._node, run
                ),
                return_type=Message,
            )
        except RunNotRunningException:
            return None
        # A message does not have its own hash in it.
        message.metadata.__dict__["_message_id"] = tree.object_id
        try:
            task = as_task(message)
        except ValueError as error:
            self._push(Message(_error(str(error)), reply_to=message))
            return None
        self._messages[task.id] = message
        return task

    def reply(self, task: Task, arrays: Arrays, metrics: Mapping[str, float | int]) -> None:
        """Send what came of a task: an ArrayRecord by the key that the task had it by, and a MetricRecord "metrics"."""
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

        message = self._messages.pop(task.id)
        content = RecordDict({"metrics": MetricRecord(dict(metrics))})
        if arrays:
            key = next(iter(message.content.array_records))
            content[key] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        self._push(Message(content, reply_to=message))

    def fail(self, task: Task, reason: str) -> None:
        """Say that nothing came of it, as flwr does of a ClientApp that raised."""
        from flwr.app import Message

        self._push(Message(_error(reason), reply_to=self._messages.pop(task.id)))

    def _push(self, message: Any) -> None:
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable import inflatable_object, inflatable_protobuf_utils, inflatable_utils
        from flwr.supercore.run import RunNotRunningException

        message.metadata.__dict__["_message_id"] = message.object_id
        bare = remove_content_from_message(message) if message.has_content() else message
        # A run that is over wants no answer.
        with suppress(RunNotRunningException), inflatable_object.no_object_id_recompute():
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(bare)],
                message_object_trees=[inflatable_object.get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
            answer = self._call(self._client.PushMessages, request)
            push = inflatable_protobuf_utils.make_push_object_fn_protobuf(
                lambda request: self._call(self._client.PushObject, request),
                self._node,
                message.metadata.run_id,
                answer.session_id,
            )
            inflatable_utils.push_objects(
                inflatable_object.get_all_nested_objects(message), push, object_ids_to_push=set(answer.objects_to_push)
            )


def _error(reason: str) -> Any:
    from flwr.app import Error
    from flwr.common.constant import ErrorCode

    return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)


def as_task(message: Any) -> Task:
    """Return the task of a message. Raise ValueError, which says why, for a message that pages do not take."""
    # "train.NAME" asks for one of a ClientApp's functions; a page has one each.
    kind = str(message.metadata.message_type)
    content = message.content
    arrays: Arrays = {}
    config: dict[str, Any] = {}
    if kind in KINDS:
        if len(content.array_records) != 1:
            raise ValueError(f"a page takes one ArrayRecord, got {len(content.array_records)}")
        (record,) = content.array_records.values()
        arrays = {name: _numbers(name, array) for name, array in record.items()}
        for entries in content.config_records.values():
            config |= {name: _setting(name, value) for name, value in entries.items()}
    return Task(message.metadata.message_id, kind, config, arrays)


def _numbers(name: str, array: Any) -> np.ndarray:
    if array.dtype != "float32":
        raise ValueError(f"the array {name!r} is {array.dtype}; pages take float32")
    if len(array.data) > MAX_OBJECT:
        raise ValueError(f"the array {name!r} has {len(array.data)} bytes")
    if array.stype != "numpy.ndarray":
        raise ValueError(f"the array {name!r} is stored as {array.stype!r}; expected 'numpy.ndarray'")
    values: np.ndarray = np.load(io.BytesIO(array.data), allow_pickle=False)
    return values


def _setting(name: str, value: Any) -> Any:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bytes):
            raise ValueError(f"the setting {name!r} has bytes; pages take numbers, strings and truth values")
        if isinstance(item, int) and not -SAFE < item < SAFE:
            raise ValueError(f"the setting {name!r} is {item}, which a page would round")
    return value


Connection = AbstractContextManager[Node]


@contextmanager
def connect(address: str, *, insecure: bool, root_certificates: str | None = None) -> Iterator[Node]:
    """A node at the SuperLink `address` that is registered and alive while the context is open.

    It speaks HTTPS with the certificates of the system or of the file `root_certificates`, or HTTP if `insecure`.
    """
    import httpx
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
    from flwr.proto import fleet_pb2, heartbeat_pb2, node_pb2
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    retry = make_simple_http_retry_invoker()
    retry.max_time = RETRY_SECONDS
    signed = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(private, public)]
    with FleetHttpClient.from_server_address(address, insecure, root_certificates, interceptors=signed) as client:
        retry.invoke(client.RegisterNode, fleet_pb2.RegisterNodeFleetRequest(public_key=key))
        interval = {"heartbeat_interval": HEARTBEAT_DEFAULT_INTERVAL}
        active = retry.invoke(client.ActivateNode, fleet_pb2.ActivateNodeRequest(public_key=key, **interval))
        node = node_pb2.Node(node_id=active.node_id)

        def beat() -> bool:
            request = heartbeat_pb2.SendNodeHeartbeatRequest(node=node, **interval)
            try:
                return bool(client.SendNodeHeartbeat(request).success)
            except httpx.HTTPError:
                return False

        heart = HeartbeatSender(beat)
        heart.start()
        try:
            yield Node(client, retry, node)
        finally:
            heart.stop()
            # A fleet that does not get this notices the missing heartbeat.
            with suppress(httpx.HTTPError, RuntimeError):
                client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node.node_id))
            with suppress(httpx.HTTPError, RuntimeError):
                client.UnregisterNode(fleet_pb2.UnregisterNodeFleetRequest(node_id=node.node_id))
