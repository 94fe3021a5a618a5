"""The end of a Kafka consumer."""

import asyncio

from aiokafka import AIOKafkaConsumer


async def leave(consumer: AIOKafkaConsumer) -> None:
    """Stop it. aiokafka (0.14) stops half-way, with the CancelledError of a fetch of its own that
    waited for a broker: passed on, it would end our task in silence."""
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        await consumer._client.close()
