-- Version 4: what operators have ordered. `freezes`: what may not begin now. `audit`: rows are only ever added.

CREATE TABLE safepoint.freezes (
    id text COLLATE "C" PRIMARY KEY,
    at float8 NOT NULL,
    body text NOT NULL
);

CREATE TABLE safepoint.audit (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id text COLLATE "C",
    body text NOT NULL
);
CREATE INDEX audit_by_run ON safepoint.audit (run_id, number) WHERE run_id IS NOT NULL;

CREATE FUNCTION safepoint.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only';
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON safepoint.audit
    FOR EACH STATEMENT EXECUTE FUNCTION safepoint.refuse_audit_change();
