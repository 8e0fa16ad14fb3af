// s3rver with the keys of the files that MinIO's variables name. A second write under `If-None-Match: *` is refused.
const fs = require('fs');
const S3rver = require('s3rver');
const account = require('s3rver/lib/models/account').DUMMY_ACCOUNT;

const word = name => fs.readFileSync(process.env[`${name}_FILE`], 'utf8').trim();
account.revokeAccessKey('S3RVER');
account.createKeyPair(word('MINIO_ROOT_USER'), word('MINIO_ROOT_PASSWORD'));
const server = new S3rver({ address: '0.0.0.0', port: 9000, directory: '/objects', silent: true, vhostBuckets: false });
server.middleware.unshift(async (context, next) => {
  if (context.path === '/healthy') {
    context.body = 'well';
  } else if (context.method === 'PUT' && context.get('if-none-match') === '*') {
    const file = `/objects${decodeURIComponent(context.path)}._S3rver_object`;
    if (fs.existsSync(file)) {
      context.status = 412;
      context.type = 'application/xml';
      context.body = '<Error><Code>PreconditionFailed</Code><Message>The object is there</Message></Error>';
    } else await next();
  } else await next();
});
server.run().then(() => console.log('serving'));
