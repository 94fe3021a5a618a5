"""The end of a Kafka consumer."""

import asyncio

from aiokafka import AIOKafkaConsumer


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer, so that others get its partitions at once.

    aiokafka (0.14) stops half-way with the CancelledError of its own fetch that waited for a
    broker. That would end our task without a message.
    """
    if (coordinator := consumer._coordinator) is not None:
        # Kafka would wait for a static member (KIP-345): without the name it leaves for good.
        coordinator._group_instance_id = None
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        await consumer._client.close()
