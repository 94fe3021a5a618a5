CREATE TABLE kafka_partition (
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    first BIGINT NOT NULL,
    next BIGINT NOT NULL,
    last_offset BIGINT,
    last_hash BYTEA,
    stored BIGINT DEFAULT 0 NOT NULL,
    duplicate BIGINT DEFAULT 0 NOT NULL,
    dead BIGINT DEFAULT 0 NOT NULL,
    parked BIGINT DEFAULT 0 NOT NULL,
    expired BIGINT DEFAULT 0 NOT NULL,
    erased_again BIGINT DEFAULT 0 NOT NULL,
    lost BIGINT DEFAULT 0 NOT NULL,
    not_delivered BIGINT DEFAULT 0 NOT NULL,
    began TEXT COLLATE "C" DEFAULT 'first' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT kafka_partition_pkey PRIMARY KEY (cluster, topic, epoch, partition)
);

CREATE TABLE consumer_lag (
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    end_offset BIGINT NOT NULL,
    oldest_waiting_at TIMESTAMP WITH TIME ZONE,
    measured_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT consumer_lag_pkey PRIMARY KEY (cluster, topic, epoch, partition)
);

CREATE TABLE lost_offsets (
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    lo BIGINT NOT NULL,
    hi BIGINT NOT NULL,
    noticed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT lost_offsets_pkey PRIMARY KEY (cluster, topic, epoch, partition, lo)
);

CREATE TABLE producer_sequence (
    producer TEXT COLLATE "C" NOT NULL,
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    block BIGINT NOT NULL,
    covered INT8MULTIRANGE NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT producer_sequence_pkey PRIMARY KEY (producer, cluster, topic, epoch, partition, block)
);

CREATE TABLE producer_report (
    producer TEXT COLLATE "C" NOT NULL,
    reporter TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    booted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    reported_at TIMESTAMP WITH TIME ZONE NOT NULL,
    seen BIGINT DEFAULT 0 NOT NULL,
    sampled_out BIGINT DEFAULT 0 NOT NULL,
    dropped JSONB DEFAULT '{}'::jsonb NOT NULL,
    queued BIGINT DEFAULT 0 NOT NULL,
    spooled BIGINT DEFAULT 0 NOT NULL,
    published BIGINT DEFAULT 0 NOT NULL,
    events BIGINT DEFAULT 0 NOT NULL,
    highest_sequence BIGINT DEFAULT 0 NOT NULL,
    final BOOLEAN DEFAULT false NOT NULL,
    silent BOOLEAN DEFAULT false NOT NULL,
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    partition INTEGER NOT NULL,
    "offset" BIGINT NOT NULL,
    heard_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT producer_report_pkey PRIMARY KEY (producer, reporter)
);

CREATE TABLE former_producers (
    id INTEGER NOT NULL,
    heard_until TIMESTAMP WITH TIME ZONE NOT NULL,
    producers BIGINT DEFAULT 0 NOT NULL,
    seen BIGINT DEFAULT 0 NOT NULL,
    sampled_out BIGINT DEFAULT 0 NOT NULL,
    dropped JSONB DEFAULT '{}'::jsonb NOT NULL,
    published BIGINT DEFAULT 0 NOT NULL,
    events BIGINT DEFAULT 0 NOT NULL,
    unsettled BIGINT DEFAULT 0 NOT NULL,
    given BIGINT DEFAULT 0 NOT NULL,
    arrived BIGINT DEFAULT 0 NOT NULL,
    holes_dropped BIGINT DEFAULT 0 NOT NULL,
    unknown_tail BIGINT DEFAULT 0 NOT NULL,
    unexplained BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT former_producers_pkey PRIMARY KEY (id)
);

CREATE TABLE dead_letter_limit_lift (
    id INTEGER NOT NULL,
    lifted_until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT dead_letter_limit_lift_pkey PRIMARY KEY (id)
);

CREATE TABLE unsettled_event (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    cluster TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    "offset" BIGINT NOT NULL,
    record_time TIMESTAMP WITH TIME ZONE NOT NULL,
    record_key BYTEA,
    payload BYTEA,
    headers JSONB DEFAULT '[]'::jsonb NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C",
    inference_id TEXT COLLATE "C",
    state TEXT COLLATE "C" DEFAULT 'open' NOT NULL,
    was_dead BOOLEAN DEFAULT false NOT NULL,
    discard_reason TEXT COLLATE "C",
    missing TEXT COLLATE "C",
    attempts INTEGER DEFAULT 0 NOT NULL,
    next_attempt_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT unsettled_event_pkey PRIMARY KEY (id),
    CONSTRAINT unsettled_event_kafka_partition_fkey FOREIGN KEY (cluster, topic, epoch, partition)
        REFERENCES kafka_partition (cluster, topic, epoch, partition)
);

CREATE INDEX unsettled_event_created_at_idx ON unsettled_event (created_at);

CREATE INDEX unsettled_event_next_attempt_at_idx ON unsettled_event (next_attempt_at);

CREATE UNIQUE INDEX unsettled_event_place_key ON unsettled_event (cluster, topic, epoch, partition, "offset");

CREATE INDEX unsettled_event_state_id_idx ON unsettled_event (state, id);
