"""The end of a Kafka consumer."""

import asyncio

import structlog
from aiokafka import AIOKafkaConsumer

# A frozen broker lets us wait for 40: without a word from us, Kafka takes our partitions in 10.
_LEAVE_SECONDS = 10.0
_log = structlog.get_logger()


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer, so that others get its partitions at once.

    aiokafka (0.14) stops half-way with the CancelledError of its own fetch that waited for a
    broker. That would end our task without a message.
    """
    if (coordinator := consumer._coordinator) is not None:
        # Kafka would wait for a static member (KIP-345): without the name it leaves for good.
        coordinator._group_instance_id = None
    try:
        async with asyncio.timeout(_LEAVE_SECONDS):
            await consumer.stop()
    except (TimeoutError, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        if isinstance(error, TimeoutError):
            _log.warning("Kafka does not answer: left without a word", action="left_silently")
        await consumer._client.close()
