PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE begun (
    output TEXT PRIMARY KEY REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL, provenance TEXT, sha256 TEXT, mtime_ns INTEGER,
    state TEXT, seal TEXT
) WITHOUT ROWID;
CREATE TABLE deployments (
    digest TEXT PRIMARY KEY, name TEXT NOT NULL, version TEXT, profile TEXT, signature TEXT
) WITHOUT ROWID;
CREATE TABLE failures (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, row INTEGER NOT NULL, part INTEGER NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (output, row)
) WITHOUT ROWID;
INSERT INTO "failures" VALUES('../out',1,0,'{"key": {"row": 1}, "source": "data.npy", "row": 1, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
INSERT INTO "failures" VALUES('../out',13,1,'{"key": {"row": 13}, "source": "data.npy", "row": 13, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
INSERT INTO "failures" VALUES('../out',20,2,'{"key": {"row": 20}, "source": "data.npy", "row": 20, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
CREATE TABLE inputs (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (output, path)
) WITHOUT ROWID;
INSERT INTO "inputs" VALUES('../out',X'646174612E6E7079',0,368,1000000000,1);
CREATE TABLE merges (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, temporary TEXT NOT NULL,
    file TEXT NOT NULL, bytes INTEGER NOT NULL, rows TEXT NOT NULL, sha256 TEXT, mtime_ns INTEGER, seal TEXT,
    PRIMARY KEY (output, part)
) WITHOUT ROWID;
INSERT INTO "merges" VALUES('../out',0,'.part-00000000.jsonl.merged','part-00000000.jsonl',232,'[1]','874c9355b6a56600765100e38ebb559aa25e96d2bc8445c6fdb96c0792f8da2b',1795434028331280707,'fd91ccf2f17564f7da2df7a74a3cb423');
CREATE TABLE outputs (
    output TEXT PRIMARY KEY, deployment TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    status TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, reason TEXT,
    first_row INTEGER NOT NULL DEFAULT 0, batch_size INTEGER, statistics TEXT NOT NULL DEFAULT '{}',
    part_digits INTEGER NOT NULL DEFAULT 5, inputs_seal TEXT
) WITHOUT ROWID;
INSERT INTO "outputs" VALUES('../out','m','run','{"model": "0000000000000000000000000000000000000000000000000000000000000000", "adapter": "", "providers": "d93b2d53a484f272ca9a43a4db98412d707996b8f8524fb7ff846af0a92c9e11", "columns": "9ff8f34727a08ff04a07cf6dcfe66a7f636540f549ea24e62b1859565607e80f", "prepare": "126230fb3679bcbced6cece3fc43b3cbed24972f02e2778c436dd4371abb0fed", "batch": "d1fd5551ae94adc4aecd3498c26c1712110567e22b29edfeabcf2af579b82a01", "postprocess": "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945", "output": "f7c74475ab33358ca80039a87fd96de427dba792f7c4c0c942dccd72ee2ff1f0"}','done','r1','2026-11-23T11:40:28.279+00:00','2026-11-23T11:40:28.309+00:00',NULL,30,NULL,'{"seconds":0.030223,"session_seconds":0.030226,"stages":{"read":{"count":8,"total":0.001197,"cpu":0.001534,"buckets":{"-506":1,"-488":1,"-485":1,"-479":2,"-470":2,"-319":1}},"prepare":{"count":8,"total":9.4e-05,"cpu":9.4e-05,"buckets":{"-547":1,"-546":1,"-545":1,"-544":1,"-536":1,"-531":1,"-527":1,"-474":1}},"run":{"count":11,"total":8.8e-05,"cpu":0.001082,"buckets":{"-566":1,"-554":1,"-551":2,"-550":1,"-546":1,"-545":1,"-543":2,"-534":1,"-503":1}},"postprocess":{"count":5,"total":1e-05,"cpu":1e-05,"buckets":{"-608":1,"-606":2,"-605":1,"-593":1}},"write":{"count":8,"total":0.002335,"cpu":0.000428,"buckets":{"-483":1,"-476":1,"-474":1,"-457":2,"-447":1,"-444":1,"-286":1}},"commit":{"count":12,"total":0.006286,"cpu":0.000958,"buckets":{"-406":2,"-404":1,"-395":1,"-391":2,"-389":1,"-365":1,"-315":2,"-313":1,"-304":1}}},"adapter_rows":{"none":27},"retries":0,"batches_cut_anew":6,"batches_halved":0,"peak_memory_bytes":130727936,"process":{"cpu_seconds_user":0.011,"cpu_seconds_system":0.005,"minor_faults":22,"major_faults":0,"voluntary_switches":127,"involuntary_switches":38},"timeline":[[0.023,8],[0.025,16],[0.027,24],[0.029,30]]}',8,'9d3ae0755803b379c905fd7555032dfe');
CREATE TABLE parts (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL DEFAULT '[]', provenance TEXT,
    sha256 TEXT, mtime_ns INTEGER, deployment TEXT, worker TEXT, seal TEXT,
    PRIMARY KEY (output, number)
) WITHOUT ROWID;
INSERT INTO "parts" VALUES('../out',0,0,8,7,1,0,'part-00000000.jsonl',202,'[]','dfd29f81f91d3b43d196e56dfa8296961df8994dff5a1a1bf22162166b58ad39','450a87adb16a73a83ae62f191aca06cdc8797a58df779a20a4e42f362c246fa5',1795434028297685873,NULL,NULL,'74b6c5996563a1696152812eba41bb24');
INSERT INTO "parts" VALUES('../out',1,8,8,7,1,0,'part-00000001.jsonl',215,'[]','dfd29f81f91d3b43d196e56dfa8296961df8994dff5a1a1bf22162166b58ad39','1921f703d393f2a4be618a0b8b2102eab94c467fc950aa71c5ca9dc49a24fbb8',1795434028302122303,NULL,NULL,'64d0eb80d8ddd8ab798ca299adfabf0e');
INSERT INTO "parts" VALUES('../out',2,16,8,7,1,0,'part-00000002.jsonl',217,'[]','dfd29f81f91d3b43d196e56dfa8296961df8994dff5a1a1bf22162166b58ad39','cd0b30a774fd09c492e5b52fd5ffc8969c556725b424b7b838acdcfd9c43ec52',1795434028304181105,NULL,NULL,'d2cbdbc433856d5d731679f2b743ce4e');
INSERT INTO "parts" VALUES('../out',3,24,6,6,0,0,'part-00000003.jsonl',186,'[]','dfd29f81f91d3b43d196e56dfa8296961df8994dff5a1a1bf22162166b58ad39','bbaf5344fa4eee8daea8b8031c15c7f9987b286e84c9581ac37a39adf6872ced',1795434028306220789,NULL,NULL,'56456a3efe6f6e418b157340a61f63fb');
CREATE TABLE provenance (digest TEXT PRIMARY KEY, entry TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "provenance" VALUES('dfd29f81f91d3b43d196e56dfa8296961df8994dff5a1a1bf22162166b58ad39','{"adapters": {}, "deployment": "m", "device": {"architecture": "x86_64", "host": "vm"}, "job": "run", "manifest": "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", "model": {"name": "m", "sha256": "0000000000000000000000000000000000000000000000000000000000000000"}, "plan": "cfa264ed2983af751d87a1de22b72ee43566e71d67f9414cfe028c95e6bfef3d", "sessions": {"m": {"placement": {"CPUExecutionProvider": 1}, "providers": ["CPUExecutionProvider"]}}, "versions": {"numpy": "2.4.6", "onnx": "1.23.2", "onnxruntime": "1.32.0", "ortdeploy": "0.1.0", "platform": "Linux-6.18.44-fc-v595-x86_64-with-glibc2.36", "python": "3.11.7"}}');
COMMIT;
