PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE failures (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, row INTEGER NOT NULL, part INTEGER NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (output, row)
) WITHOUT ROWID;
INSERT INTO "failures" VALUES('../out',1,0,'{"key": {"row": 1}, "source": "data.npy", "row": 1, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
INSERT INTO "failures" VALUES('../out',13,2,'{"key": {"row": 13}, "source": "data.npy", "row": 13, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
CREATE TABLE inputs (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (output, path)
) WITHOUT ROWID;
INSERT INTO "inputs" VALUES('../out',X'646174612E6E7079',0,368,1000000000,0);
CREATE TABLE merges (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, temporary TEXT NOT NULL,
    file TEXT NOT NULL, bytes INTEGER NOT NULL, rows TEXT NOT NULL, PRIMARY KEY (output, part)
) WITHOUT ROWID;
CREATE TABLE outputs (
    output TEXT PRIMARY KEY, deployment TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    status TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, reason TEXT,
    first_row INTEGER NOT NULL DEFAULT 0, batch_size INTEGER, statistics TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
INSERT INTO "outputs" VALUES('../out','m','run','{"model": "0000000000000000000000000000000000000000000000000000000000000000", "adapter": "", "providers": "d93b2d53a484f272ca9a43a4db98412d707996b8f8524fb7ff846af0a92c9e11", "columns": "9ff8f34727a08ff04a07cf6dcfe66a7f636540f549ea24e62b1859565607e80f", "prepare": "126230fb3679bcbced6cece3fc43b3cbed24972f02e2778c436dd4371abb0fed", "batch": "d1fd5551ae94adc4aecd3498c26c1712110567e22b29edfeabcf2af579b82a01", "postprocess": "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945", "output": "f7c74475ab33358ca80039a87fd96de427dba792f7c4c0c942dccd72ee2ff1f0"}','failed','r1','2026-11-23T06:35:00.450+00:00','2026-11-23T06:35:01.401+00:00','2 rows failed and errors: {max_failed: 1} allows 1. The last: data.npy: negative',0,NULL,'{"seconds":0.950369,"session_seconds":0.950385,"stages":{"read":{"count":8,"total":0.001599,"cpu":0.001755,"buckets":{"-494":1,"-490":1,"-486":1,"-484":1,"-476":1,"-466":1,"-401":1,"-308":1}},"prepare":{"count":8,"total":0.000199,"cpu":0.0002,"buckets":{"-517":1,"-516":1,"-507":1,"-504":1,"-502":1,"-483":1,"-474":1,"-452":1}},"run":{"count":7,"total":0.422666,"cpu":0.005772,"buckets":{"-129":7}},"postprocess":{"count":3,"total":3.4e-05,"cpu":3e-05,"buckets":{"-527":1,"-526":1,"-523":1}},"write":{"count":3,"total":0.000534,"cpu":0.000534,"buckets":{"-411":1,"-395":1,"-391":1}},"commit":{"count":4,"total":0.033993,"cpu":0.001594,"buckets":{"-232":1,"-226":1,"-221":1,"-204":1}}},"adapter_rows":{"none":18},"retries":0,"peak_memory_bytes":107331584,"process":{"cpu_seconds_user":0.023,"cpu_seconds_system":0.006,"minor_faults":50,"major_faults":0,"voluntary_switches":96,"involuntary_switches":28},"timeline":[[0.46,8],[0.948,12]]}');
CREATE TABLE parts (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL DEFAULT '[]', provenance TEXT,
    PRIMARY KEY (output, number)
) WITHOUT ROWID;
INSERT INTO "parts" VALUES('../out',0,0,8,7,1,0,'part-00000.jsonl',202,'[]','0c4364d4cb7af901e1ea5a7c531ac0f6d87a9e0f01a47a7b07841f5daed8939e');
INSERT INTO "parts" VALUES('../out',1,8,4,4,0,0,'part-00001.jsonl',122,'[]','0c4364d4cb7af901e1ea5a7c531ac0f6d87a9e0f01a47a7b07841f5daed8939e');
CREATE TABLE provenance (digest TEXT PRIMARY KEY, entry TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "provenance" VALUES('0c4364d4cb7af901e1ea5a7c531ac0f6d87a9e0f01a47a7b07841f5daed8939e','{"adapters": {}, "deployment": "m", "device": {"architecture": "x86_64", "host": "vm"}, "job": "run", "manifest": "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", "model": {"name": "m", "sha256": "0000000000000000000000000000000000000000000000000000000000000000"}, "plan": "841e8ab42469085701dc78aecc73ca266c3a80b510f371f07c68f15be92b54ed", "sessions": {"m": {"placement": {"CPUExecutionProvider": 1}, "providers": ["CPUExecutionProvider"]}}, "versions": {"numpy": "2.4.6", "onnx": "1.23.2", "onnxruntime": "1.32.0", "ortdeploy": "0.1.0", "platform": "Linux-6.18.44-fc-v445-x86_64-with-glibc2.36", "python": "3.11.7"}}');
COMMIT;
