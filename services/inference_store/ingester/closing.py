"""The end of a Kafka consumer."""

import asyncio

from aiokafka import AIOKafkaConsumer


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop it, so that others have its partitions at once. aiokafka (0.14) stops half-way, with the
    CancelledError of a fetch of its own that waited for a broker: passed on, it would end our task
    in silence."""
    if (coordinator := consumer._coordinator) is not None:
        # A member with a name of its own (KIP-345) would be waited for: it is to leave for good.
        coordinator._group_instance_id = None
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        await consumer._client.close()
