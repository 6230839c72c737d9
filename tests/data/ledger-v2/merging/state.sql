PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE failures (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, row INTEGER NOT NULL, part INTEGER NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (output, row)
) WITHOUT ROWID;
INSERT INTO "failures" VALUES('../out',13,1,'{"key": {"row": 13}, "source": "data.npy", "row": 13, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
INSERT INTO "failures" VALUES('../out',20,2,'{"key": {"row": 20}, "source": "data.npy", "row": 20, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
CREATE TABLE inputs (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (output, path)
) WITHOUT ROWID;
INSERT INTO "inputs" VALUES('../out',X'646174612E6E7079',0,368,1000000000,1);
CREATE TABLE merges (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, temporary TEXT NOT NULL,
    file TEXT NOT NULL, bytes INTEGER NOT NULL, rows TEXT NOT NULL, PRIMARY KEY (output, part)
) WITHOUT ROWID;
INSERT INTO "merges" VALUES('../out',1,'.part-00001.jsonl.merged','part-00001.jsonl',248,'[13]');
CREATE TABLE outputs (
    output TEXT PRIMARY KEY, deployment TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    status TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, reason TEXT,
    first_row INTEGER NOT NULL DEFAULT 0, batch_size INTEGER, statistics TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
INSERT INTO "outputs" VALUES('../out','m','run','{"model": "0000000000000000000000000000000000000000000000000000000000000000", "adapter": "", "providers": "d93b2d53a484f272ca9a43a4db98412d707996b8f8524fb7ff846af0a92c9e11", "columns": "9ff8f34727a08ff04a07cf6dcfe66a7f636540f549ea24e62b1859565607e80f", "prepare": "126230fb3679bcbced6cece3fc43b3cbed24972f02e2778c436dd4371abb0fed", "batch": "d1fd5551ae94adc4aecd3498c26c1712110567e22b29edfeabcf2af579b82a01", "postprocess": "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945", "output": "f7c74475ab33358ca80039a87fd96de427dba792f7c4c0c942dccd72ee2ff1f0"}','done','r1','2026-11-23T06:35:01.511+00:00','2026-11-23T06:35:01.628+00:00',NULL,30,NULL,'{"seconds":0.115588,"session_seconds":0.115667,"stages":{"read":{"count":8,"total":0.003193,"cpu":0.002056,"buckets":{"-468":1,"-450":1,"-446":2,"-445":1,"-433":1,"-319":1,"-291":1}},"prepare":{"count":8,"total":0.000281,"cpu":0.000281,"buckets":{"-496":1,"-495":2,"-494":1,"-492":1,"-478":1,"-476":1,"-422":1}},"run":{"count":11,"total":0.000304,"cpu":0.002743,"buckets":{"-508":2,"-502":1,"-497":1,"-495":1,"-490":1,"-482":1,"-476":1,"-475":1,"-463":1,"-460":1}},"postprocess":{"count":5,"total":2.3e-05,"cpu":2e-05,"buckets":{"-577":1,"-569":1,"-568":1,"-564":1,"-562":1}},"write":{"count":8,"total":0.001069,"cpu":0.001068,"buckets":{"-435":1,"-430":1,"-422":1,"-420":1,"-404":1,"-401":1,"-400":1,"-395":1}},"commit":{"count":8,"total":0.082439,"cpu":0.002601,"buckets":{"-307":1,"-248":1,"-247":1,"-227":1,"-218":1,"-206":1,"-191":1,"-163":1}}},"adapter_rows":{"none":27},"retries":0,"peak_memory_bytes":107515904,"process":{"cpu_seconds_user":0.02,"cpu_seconds_system":0.013,"minor_faults":25,"major_faults":0,"voluntary_switches":108,"involuntary_switches":42},"timeline":[[0.056,8],[0.074,16],[0.096,24],[0.114,30]]}');
CREATE TABLE parts (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL DEFAULT '[]', provenance TEXT,
    PRIMARY KEY (output, number)
) WITHOUT ROWID;
INSERT INTO "parts" VALUES('../out',0,0,8,8,0,0,'part-00000.jsonl',232,'[]','232371445e1961405a6c4efc145b9fa0950d650e45d0c40b9e85b1d57b03032a');
INSERT INTO "parts" VALUES('../out',1,8,8,7,1,0,'part-00001.jsonl',215,'[]','232371445e1961405a6c4efc145b9fa0950d650e45d0c40b9e85b1d57b03032a');
INSERT INTO "parts" VALUES('../out',2,16,8,7,1,0,'part-00002.jsonl',217,'[]','232371445e1961405a6c4efc145b9fa0950d650e45d0c40b9e85b1d57b03032a');
INSERT INTO "parts" VALUES('../out',3,24,6,6,0,0,'part-00003.jsonl',186,'[]','232371445e1961405a6c4efc145b9fa0950d650e45d0c40b9e85b1d57b03032a');
CREATE TABLE provenance (digest TEXT PRIMARY KEY, entry TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "provenance" VALUES('232371445e1961405a6c4efc145b9fa0950d650e45d0c40b9e85b1d57b03032a','{"adapters": {}, "deployment": "m", "device": {"architecture": "x86_64", "host": "vm"}, "job": "run", "manifest": "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", "model": {"name": "m", "sha256": "0000000000000000000000000000000000000000000000000000000000000000"}, "plan": "0e2cff1871d77a64a4b81668a8fa1dc96b25ea4ca6cf721cfe95a7496caad4a2", "sessions": {"m": {"placement": {"CPUExecutionProvider": 1}, "providers": ["CPUExecutionProvider"]}}, "versions": {"numpy": "2.4.6", "onnx": "1.23.2", "onnxruntime": "1.32.0", "ortdeploy": "0.1.0", "platform": "Linux-6.18.44-fc-v445-x86_64-with-glibc2.36", "python": "3.11.7"}}');
COMMIT;
