"""A flow's parameters that its tasks are not told: neither a worker nor Prefect's server hears of them."""

from __future__ import annotations

import pickle

import pytest
from distributed.protocol.pickle import dumps
from prefect import flow
from prefect.context import FlowRunContext, serialize_context

from congruence.flows.evaluation.not_serialized import NotSerialized


def test_a_copy_that_is_sent_elsewhere_holds_nothing() -> None:
    given = NotSerialized(["a version"])
    assert given.here() == ["a version"]
    with pytest.raises(ValueError, match="process of the flow alone"):
        pickle.loads(pickle.dumps(given)).here()


@pytest.mark.usefixtures("prefect_server")
def test_what_a_task_is_sent_does_not_grow_with_it() -> None:
    @flow(name="of a test", validate_parameters=False)
    def told(asked: NotSerialized[list[str]]) -> tuple[int, object]:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        assert asked.here()
        return len(dumps(serialize_context())), context.flow_run.parameters["asked"]

    few, many = (told(NotSerialized([f"version {number}" for number in range(count)])) for count in (1, 10_000))
    assert many[0] == pytest.approx(few[0], abs=100)  # the runs have names of their own
    assert few[1] == many[1] == "<NotSerialized>"
