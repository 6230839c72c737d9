PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE begun (
    output TEXT PRIMARY KEY REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL, provenance TEXT, sha256 TEXT, mtime_ns INTEGER,
    state TEXT, seal TEXT
) WITHOUT ROWID;
INSERT INTO "begun" VALUES('../out',0,0,4,3,1,0,'.part-00000000.jsonl.4.begun',84,'[]','dfd29f81f91d3b43d196e56dfa8296961df8994dff5a1a1bf22162166b58ad39','ca0b6a56cd3b6d4a3ea3437aa8e875bf1e089caf53be0a828ffe11747d421d9b',1795434028246820686,NULL,'890f5a3060bdf8d707b17228d0ca9377');
CREATE TABLE deployments (
    digest TEXT PRIMARY KEY, name TEXT NOT NULL, version TEXT, profile TEXT, signature TEXT
) WITHOUT ROWID;
CREATE TABLE failures (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, row INTEGER NOT NULL, part INTEGER NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (output, row)
) WITHOUT ROWID;
INSERT INTO "failures" VALUES('../out',1,0,'{"key": {"row": 1}, "source": "data.npy", "row": 1, "stage": "run", "code": "run-refused", "message": "negative", "attempts": 1}');
CREATE TABLE inputs (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, path TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (output, path)
) WITHOUT ROWID;
INSERT INTO "inputs" VALUES('../out',X'646174612E6E7079',0,368,1000000000,0);
CREATE TABLE merges (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, part INTEGER NOT NULL, temporary TEXT NOT NULL,
    file TEXT NOT NULL, bytes INTEGER NOT NULL, rows TEXT NOT NULL, sha256 TEXT, mtime_ns INTEGER, seal TEXT,
    PRIMARY KEY (output, part)
) WITHOUT ROWID;
CREATE TABLE outputs (
    output TEXT PRIMARY KEY, deployment TEXT NOT NULL, job TEXT NOT NULL, identity TEXT NOT NULL,
    status TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, ended TEXT, reason TEXT,
    first_row INTEGER NOT NULL DEFAULT 0, batch_size INTEGER, statistics TEXT NOT NULL DEFAULT '{}',
    part_digits INTEGER NOT NULL DEFAULT 5, inputs_seal TEXT
) WITHOUT ROWID;
INSERT INTO "outputs" VALUES('../out','m','run','{"model": "0000000000000000000000000000000000000000000000000000000000000000", "adapter": "", "providers": "d93b2d53a484f272ca9a43a4db98412d707996b8f8524fb7ff846af0a92c9e11", "columns": "9ff8f34727a08ff04a07cf6dcfe66a7f636540f549ea24e62b1859565607e80f", "prepare": "126230fb3679bcbced6cece3fc43b3cbed24972f02e2778c436dd4371abb0fed", "batch": "d1fd5551ae94adc4aecd3498c26c1712110567e22b29edfeabcf2af579b82a01", "postprocess": "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945", "output": "f7c74475ab33358ca80039a87fd96de427dba792f7c4c0c942dccd72ee2ff1f0"}','failed','r1','2026-11-23T11:40:28.220+00:00','2026-11-23T11:40:28.251+00:00','the device is gone',0,NULL,'{"seconds":0.029832,"session_seconds":0.02984,"stages":{"read":{"count":8,"total":0.001494,"cpu":0.002043,"buckets":{"-497":1,"-486":1,"-480":1,"-475":1,"-471":1,"-462":1,"-458":1,"-308":1}},"prepare":{"count":8,"total":0.000129,"cpu":0.00013,"buckets":{"-534":2,"-533":1,"-528":1,"-525":1,"-521":1,"-498":1,"-461":1}},"run":{"count":2,"total":3.6e-05,"cpu":0.000804,"buckets":{"-536":1,"-486":1}},"postprocess":{"count":0,"total":0.0,"cpu":0.0,"buckets":{}},"write":{"count":1,"total":0.000113,"cpu":0.000112,"buckets":{"-419":1}},"commit":{"count":2,"total":0.000549,"cpu":0.00032,"buckets":{"-399":1,"-364":1}}},"adapter_rows":{"none":3},"retries":0,"batches_cut_anew":2,"batches_halved":0,"peak_memory_bytes":130584576,"process":{"cpu_seconds_user":0.006,"cpu_seconds_system":0.005,"minor_faults":47,"major_faults":0,"voluntary_switches":52,"involuntary_switches":9},"timeline":[]}',8,'2ad3d5471924e80541f6c6063127b6d6');
CREATE TABLE parts (
    output TEXT NOT NULL REFERENCES outputs ON DELETE CASCADE, number INTEGER NOT NULL, start INTEGER NOT NULL,
    rows INTEGER NOT NULL, committed INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
    file TEXT, bytes INTEGER NOT NULL, skipped_rows TEXT NOT NULL DEFAULT '[]', provenance TEXT,
    sha256 TEXT, mtime_ns INTEGER, deployment TEXT, worker TEXT, seal TEXT,
    PRIMARY KEY (output, number)
) WITHOUT ROWID;
CREATE TABLE provenance (digest TEXT PRIMARY KEY, entry TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "provenance" VALUES('dfd29f81f91d3b43d196e56dfa8296961df8994dff5a1a1bf22162166b58ad39','{"adapters": {}, "deployment": "m", "device": {"architecture": "x86_64", "host": "vm"}, "job": "run", "manifest": "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", "model": {"name": "m", "sha256": "0000000000000000000000000000000000000000000000000000000000000000"}, "plan": "cfa264ed2983af751d87a1de22b72ee43566e71d67f9414cfe028c95e6bfef3d", "sessions": {"m": {"placement": {"CPUExecutionProvider": 1}, "providers": ["CPUExecutionProvider"]}}, "versions": {"numpy": "2.4.6", "onnx": "1.23.2", "onnxruntime": "1.32.0", "ortdeploy": "0.1.0", "platform": "Linux-6.18.44-fc-v595-x86_64-with-glibc2.36", "python": "3.11.7"}}');
COMMIT;
