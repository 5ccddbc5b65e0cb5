-- Names of queues, users, models, nodes, outcomes and causes.
CREATE TABLE name (
  id   INTEGER PRIMARY KEY,
  text TEXT NOT NULL UNIQUE
) STRICT;

-- One attempt of one gang. base is the Nomad index that its allocations came
-- after: a number is used again where a job of the same name is purged.
CREATE TABLE attempt (
  id        INTEGER PRIMARY KEY,
  gang      TEXT    NOT NULL,               -- namespace/job
  number    INTEGER NOT NULL,
  base      INTEGER NOT NULL,
  queue     INTEGER NOT NULL REFERENCES name,
  user      INTEGER NOT NULL REFERENCES name,
  members   INTEGER NOT NULL,
  cards     INTEGER NOT NULL,               -- asked for
  submitted INTEGER NOT NULL,               -- milliseconds, 0: not known; so are all below
  queued    INTEGER NOT NULL,
  planned   INTEGER NOT NULL,
  eta_made  INTEGER NOT NULL DEFAULT 0,     -- when a start was first foretold, and which
  eta_from  INTEGER NOT NULL DEFAULT 0,
  eta_to    INTEGER NOT NULL DEFAULT 0,
  UNIQUE (gang, number, base)
) STRICT;
CREATE INDEX attempt_planned ON attempt (planned);

-- Cards of one model that one allocation holds, from created (seconds).
CREATE TABLE allocation (
  id      INTEGER PRIMARY KEY,
  attempt INTEGER NOT NULL REFERENCES attempt,
  alloc   TEXT    NOT NULL,
  node    INTEGER NOT NULL REFERENCES name,
  model   INTEGER NOT NULL REFERENCES name,
  cards   INTEGER NOT NULL,
  created INTEGER NOT NULL,
  UNIQUE (alloc, model)
) STRICT;
CREATE INDEX allocation_attempt ON allocation (attempt);

-- The end of an allocation in seconds: exact where Nomad's client told when its
-- tasks ended, else when Nomad gave it up. The exact one counts if there are two.
CREATE TABLE allocation_end (
  allocation INTEGER NOT NULL REFERENCES allocation,
  exact      INTEGER NOT NULL,
  ended      INTEGER NOT NULL,
  how        INTEGER NOT NULL REFERENCES name,
  PRIMARY KEY (allocation, exact)
) STRICT, WITHOUT ROWID;

-- When an attempt entered a stage (milliseconds).
CREATE TABLE stage (
  attempt INTEGER NOT NULL REFERENCES attempt,
  stage   INTEGER NOT NULL REFERENCES name,
  entered INTEGER NOT NULL,
  PRIMARY KEY (attempt, stage)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt_end (
  attempt    INTEGER PRIMARY KEY REFERENCES attempt,
  ended      INTEGER NOT NULL,              -- milliseconds
  outcome    INTEGER NOT NULL REFERENCES name,
  reason     INTEGER NOT NULL REFERENCES name,
  kind       INTEGER NOT NULL REFERENCES name, -- of the eviction; '': none
  code       INTEGER NOT NULL,              -- exit code; -1: not known
  checkpoint INTEGER NOT NULL,              -- milliseconds; 0: none
  text       TEXT    NOT NULL
) STRICT;
CREATE INDEX attempt_end_ended ON attempt_end (ended);

-- A gang that is over.
CREATE TABLE gang_end (
  gang      TEXT    NOT NULL,
  ended     INTEGER NOT NULL,               -- milliseconds
  submitted INTEGER NOT NULL,
  stage     INTEGER NOT NULL REFERENCES name,
  queue     INTEGER NOT NULL REFERENCES name,
  user      INTEGER NOT NULL REFERENCES name,
  cards     INTEGER NOT NULL,
  attempts  INTEGER NOT NULL,
  PRIMARY KEY (gang, ended)
) STRICT, WITHOUT ROWID;
CREATE INDEX gang_end_ended ON gang_end (ended);

-- Work that has to be done again, booked when it was lost (seconds).
CREATE TABLE loss (
  attempt      INTEGER NOT NULL REFERENCES attempt,
  model        INTEGER NOT NULL REFERENCES name,
  cause        INTEGER NOT NULL REFERENCES name,
  at           INTEGER NOT NULL,
  queue        INTEGER NOT NULL REFERENCES name,
  user         INTEGER NOT NULL REFERENCES name,
  card_seconds INTEGER NOT NULL,
  PRIMARY KEY (attempt, model)
) STRICT, WITHOUT ROWID;
CREATE INDEX loss_at ON loss (at);

-- What was decided about a gang, and by hand on it.
CREATE TABLE decision (
  id      INTEGER PRIMARY KEY,
  at      INTEGER NOT NULL,                 -- milliseconds
  gang    TEXT    NOT NULL,
  attempt INTEGER NOT NULL,                 -- number
  queue   INTEGER NOT NULL REFERENCES name,
  action  INTEGER NOT NULL REFERENCES name,
  reason  INTEGER NOT NULL REFERENCES name,
  who     TEXT    NOT NULL,                 -- '': the planner
  text    TEXT    NOT NULL,
  UNIQUE (gang, at, action)
) STRICT;
CREATE INDEX decision_at ON decision (at);

-- The books: card-seconds of one attempt in one UTC hour. What comes late, or
-- turns out to have been otherwise, is a further revision with the difference.
CREATE TABLE usage (
  attempt    INTEGER NOT NULL REFERENCES attempt,
  model      INTEGER NOT NULL REFERENCES name,
  hour       INTEGER NOT NULL,              -- seconds / 3600
  revision   INTEGER NOT NULL,
  guaranteed INTEGER NOT NULL,
  borrowed   INTEGER NOT NULL,
  held       INTEGER NOT NULL,
  training   INTEGER NOT NULL,
  PRIMARY KEY (attempt, model, hour, revision),
  CHECK (guaranteed + borrowed = held + training)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_by_hour ON usage (hour);

-- Their sums, kept in the same transactions.
CREATE TABLE usage_hour (
  hour       INTEGER NOT NULL,
  queue      INTEGER NOT NULL,
  user       INTEGER NOT NULL,
  model      INTEGER NOT NULL,
  guaranteed INTEGER NOT NULL,
  borrowed   INTEGER NOT NULL,
  held       INTEGER NOT NULL,
  training   INTEGER NOT NULL,
  PRIMARY KEY (hour, queue, user, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_day (
  day        INTEGER NOT NULL,
  queue      INTEGER NOT NULL,
  user       INTEGER NOT NULL,
  model      INTEGER NOT NULL,
  guaranteed INTEGER NOT NULL,
  borrowed   INTEGER NOT NULL,
  held       INTEGER NOT NULL,
  training   INTEGER NOT NULL,
  PRIMARY KEY (day, queue, user, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE loss_day (
  day          INTEGER NOT NULL,
  queue        INTEGER NOT NULL,
  user         INTEGER NOT NULL,
  model        INTEGER NOT NULL,
  cause        INTEGER NOT NULL,
  card_seconds INTEGER NOT NULL,
  PRIMARY KEY (day, queue, user, model, cause)
) STRICT, WITHOUT ROWID;

-- What the cards did, of one attempt from its start to its end.
CREATE TABLE utilisation (
  attempt      INTEGER NOT NULL REFERENCES attempt,
  model        INTEGER NOT NULL REFERENCES name,
  cards        INTEGER NOT NULL,
  sampled      INTEGER NOT NULL,            -- card-milliseconds that samples stand for
  activity     INTEGER NOT NULL,            -- card-milliseconds times per mille of activity
  idle         INTEGER NOT NULL,            -- card-milliseconds without activity
  memory       INTEGER NOT NULL,            -- MiB-seconds in use
  memory_total INTEGER NOT NULL,            -- MiB-seconds held
  energy       INTEGER NOT NULL,            -- millijoules
  never_busy   INTEGER NOT NULL,            -- cards
  untouched    INTEGER NOT NULL,            -- MiB that were never in use
  histogram    BLOB    NOT NULL,
  PRIMARY KEY (attempt, model)
) STRICT, WITHOUT ROWID;

-- The same by hour, summed up as samples come.
CREATE TABLE utilisation_hour (
  hour         INTEGER NOT NULL,
  queue        INTEGER NOT NULL,
  user         INTEGER NOT NULL,
  model        INTEGER NOT NULL,
  sampled      INTEGER NOT NULL,
  activity     INTEGER NOT NULL,
  idle         INTEGER NOT NULL,
  memory       INTEGER NOT NULL,
  memory_total INTEGER NOT NULL,
  energy       INTEGER NOT NULL,
  histogram    BLOB    NOT NULL,
  PRIMARY KEY (hour, queue, user, model)
) STRICT, WITHOUT ROWID;

-- The whole cluster by hour: card-seconds in each state.
CREATE TABLE cluster_hour (
  hour       INTEGER NOT NULL,
  model      INTEGER NOT NULL,
  observed   INTEGER NOT NULL,              -- seconds of the hour
  free       INTEGER NOT NULL,
  used       INTEGER NOT NULL,
  other      INTEGER NOT NULL,
  out        INTEGER NOT NULL,
  fragmented INTEGER NOT NULL,              -- of free: what the waiting mix could not use
  wanted     INTEGER NOT NULL,              -- card-seconds that gangs waited for
  PRIMARY KEY (hour, model)
) STRICT, WITHOUT ROWID;

-- Working state; no records.
CREATE TABLE pending (allocation INTEGER PRIMARY KEY REFERENCES allocation) STRICT;
CREATE TABLE sampling (attempt INTEGER PRIMARY KEY REFERENCES attempt, state BLOB NOT NULL) STRICT;
CREATE TABLE tally (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO state VALUES ('booked', 0);

-- Records are only ever added.
CREATE TRIGGER attempt_kept BEFORE UPDATE ON attempt BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER attempt_stays BEFORE DELETE ON attempt BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER allocation_kept BEFORE UPDATE ON allocation BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER allocation_stays BEFORE DELETE ON allocation BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER allocation_end_kept BEFORE UPDATE ON allocation_end BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER allocation_end_stays BEFORE DELETE ON allocation_end BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER stage_kept BEFORE UPDATE ON stage BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER stage_stays BEFORE DELETE ON stage BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER attempt_end_kept BEFORE UPDATE ON attempt_end BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER attempt_end_stays BEFORE DELETE ON attempt_end BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER gang_end_kept BEFORE UPDATE ON gang_end BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER gang_end_stays BEFORE DELETE ON gang_end BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER loss_kept BEFORE UPDATE ON loss BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER loss_stays BEFORE DELETE ON loss BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER decision_kept BEFORE UPDATE ON decision BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER decision_stays BEFORE DELETE ON decision BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER usage_kept BEFORE UPDATE ON usage BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER usage_stays BEFORE DELETE ON usage BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER utilisation_kept BEFORE UPDATE ON utilisation BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER utilisation_stays BEFORE DELETE ON utilisation BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
