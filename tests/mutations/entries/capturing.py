"""Of the proxy: serving is not changed or harmed, and captures are accounted for."""

from tests.mutations.mutant import Mutant

CAPTURING = (
    Mutant(
        name="header-dropped",
        promise="a request goes on with all its headers",
        file="proxy/rest/headers.py",
        old='        b"upgrade",\n',
        new='        b"upgrade",\n        b"authorization",\n',
        command="integration",
        tests=("tests/integration/proxy/test_rest_forwarding.py",),
    ),
    Mutant(
        name="hop-header-passed",
        promise="headers of one connection stay there",
        file="proxy/rest/headers.py",
        old="if name not in _HOP_BY_HOP and name not in connection_headers",
        new="if name not in _HOP_BY_HOP",
        command="integration",
        tests=("tests/integration/proxy/test_rest_forwarding.py",),
    ),
    Mutant(
        name="nothing-stripped",
        promise="metadata are taken out of the request where that is asked for",
        file="proxy/protocols/v2/stripping.py",
        old="    if not cuts:\n        return None\n",
        new="    if cuts:\n        return None\n",
        command="unit",
        tests=("tests/unit/proxy/protocols/v2/test_stripping.py",),
    ),
    Mutant(
        name="outputs-by-order",
        promise="a prediction goes to the datum whose name it has",
        file="proxy/protocols/v2/splitting.py",
        old="        return [[by_name[name]] for name in names]\n",
        new="        return [[each] for each in outputs]\n",
        command="unit",
        tests=("tests/unit/proxy/protocols/v2/test_splitting.py",),
    ),
    Mutant(
        name="refusal-not-counted",
        promise="a capture that is refused is counted",
        file="proxy/capture/counts.py",
        old="        self.values[CounterId.REFUSED + REASONS.index(reason)] += 1\n",
        new="",
        command="unit",
        tests=("tests/unit/proxy/capture/test_counts.py",),
    ),
    Mutant(
        name="budget-unbounded",
        promise="captures are held within one budget of memory",
        file="proxy/capture/budget.py",
        old="            if self.held + size > self.limit:\n",
        new="            if size > self.limit:\n",
        command="unit",
        tests=("tests/unit/proxy/capture",),
    ),
    Mutant(
        name="event-before-blobs",
        promise="blobs are written before the event",
        file="proxy/capture/deliveries.py",
        old="""\
            self._put_blob(blob)
        return prepared
""",
        new="""\
            self._threads.submit(self._put_blob, blob)
        return prepared
""",
        command="faults",
        tests=("tests/integration/proxy/capture/test_servers_away.py",),
    ),
    Mutant(
        name="settled-before-published",
        promise="an exchange leaves the spool when Kafka has it",
        file="proxy/capture/deliveries.py",
        old="""\
            await self.kafka.retry(partial(self._publish, prepared))
        except""",
        new="""\
            await self._settle(item, len(prepared.messages))
            await self.kafka.retry(partial(self._publish, prepared))
            return
        except""",
        command="faults",
        tests=("tests/integration/proxy/capture/test_servers_away.py",),
    ),
    Mutant(
        name="spool-torn-unseen",
        promise="a capture counts as spooled once it is whole on disk",
        file="proxy/capture/spool.py",
        old="        part = path.with_suffix(_PART)\n        with part.open",
        new="        part = path\n        with part.open",
        command="unit",
        tests=("tests/unit/proxy/capture/test_spool.py",),
    ),
    Mutant(
        name="secret-header-kept",
        promise="no secret of a request is kept, whatever the configuration says",
        file="proxy/capture/request_headers.py",
        old="for name, value in headers if name in names and not is_secret(name)]",
        new="for name, value in headers if name in names]",
        command="unit",
        tests=("tests/unit/proxy/capture",),
    ),
)
